"""One stage: load a weight, train it on rows, export it. `python -m stages.train REQUEST.json`."""

from stages.contract.signals import exit_process
from stages.train.stage import main

if __name__ == "__main__":
    exit_process(main())
