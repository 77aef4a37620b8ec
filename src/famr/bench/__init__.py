"""`famr bench methods`: methods beside each other and beside retraining, on a user's model and data.

    plan.py         what a bench runs: methods × requests × seeds, and what it refuses
    methods.py      the methods under the names of the tables
    tasks.py        the requests that are scored, and others to tune on
    tuning.py       trials of a method's numbers, its paper's among them
    limit.py        how many of a method's steps fit into the limit in seconds
    trial_case.py   a tuning request; judged on images that are never scored
    gate.py         which trial is chosen, without a retrained model
    scoring.py      predictions of a model on the sets of a request, and the figures from them
    references.py   retrained reference models, kept by their predictions
    cells.py        one request, one method, one seed: run and measured
    results.py      the folder of a bench
    running.py      runs what the folder does not hold yet
    spreading.py    the same in several processes
    columns.py      the figures of a cell that are compared
    statistics.py   intervals and paired tests over requests and seeds, corrected for all pairs
    comparison.py   which methods are ranked in a column, and the outcome for results.json
    tables.py       the page with the results
    tuning_tables.py  its table of what was tried
    setup.py        data, starting weights and training as a command line names them

A method takes part once it is listed in `famr.baselines`; nothing here names methods one by one.
"""
