"""Every source of graphs, compared with an eager call of the same model.

    python -m tests.sources                             # all models, all sources
    python -m tests.sources --only 'Bert|GPT2' --jobs 2

`forms` is the table of sources: one entry each, with the differences that it may show. `models`
makes the models, `compare` compares. Each difference has the name that docs/sources.md explains.
"""
