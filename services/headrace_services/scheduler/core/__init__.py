"""The pure core: every scheduling decision is a function from values to values.

It has no clock, database or network, and all its randomness comes from its inputs and the study's seed. `decide`
takes the inputs of one study and returns a plan. It asks for the rows that it needs on the way (`needs`), and its
caller answers. `inputs` defines what can arrive, `plan` what comes out, and `state` is the working copy in
between. `reports`, `exits`, `commands` and `proposals` decide what an input changes; `placing` and `sharing`
decide what runs next.
"""
