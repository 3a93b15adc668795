"""The pure core: what is decided, from values to values.

It has no clock, no database, no network, and draws nothing that its inputs and the study's seed do not determine.
`decide` takes the inputs of one study and returns a plan. It asks for the rows that it needs on the way (`needs`),
and its caller answers. `inputs` says what can arrive, `plan` what comes out, `state` is the working copy in
between. `reports`, `exits`, `commands` and `proposals` decide what an input changes; `placing` and `sharing`
decide what runs next.
"""
