"""Every architecture of `transformers`, drawn small and compared with oracles.

    python -m tests.zoo --only 'Llama|T5' --jobs 2      # a part
    python -m tests.zoo --heads --json zoo.jsonl        # all of it
    python -m tests.zoo --build                         # what can be built and run, no drawing

`models` builds, by `shrink` (configurations) and `inputs`; `oracles`, `dependencies` and
`fingerprints` tell what is true; `check` compares, by the rules in `faults`; `farm` runs
each class in a process of its own.
"""
