"""Hundreds of conversions, reads and saves on one host while something goes wrong in each of them.

    python -m tests.faults.soak [--rounds 500] [--minutes 60] [--seed 0] [--only NUMBER]
        [--kind KIND] [--job JOB] [--folder DIR]

`child.py` forks the processes and makes the trouble, `ground.py` holds the checkpoints and judges
what a run left, `rounds.py` has the kinds of rounds.
"""
