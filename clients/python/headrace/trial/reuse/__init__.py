"""What makes it safe that a process runs several trials (`trial: {reuse: true}`), one after another.

    settings ─ restored after each trial
    leftovers, module_state ─ looked for after each trial: any of them ends the process

`between` joins them. A process that is ended costs the next trial an import, and never its result: what cannot be
restored or compared counts as changed. `headrace check --reuse` finds what these checks do not see.
"""
