"""What makes it safe that a process runs several trials (`trial: {reuse: true}`), one after another.

    settings ─ restored after each trial
    leftovers, module_state ─ looked for after each trial: any of them ends the process

`between` joins them. A process that is ended costs the next trial an import, and never its result: what cannot be
restored or compared counts as changed.

Not seen, and left to `headrace check --reuse`: state within libraries (their caches, registries and options that
`library_settings` does not name), objects of C that show nothing of themselves (a database in memory, a hash),
content of files and of memory that is mapped from them, and what a library reads once, such as an environment
variable.
"""
