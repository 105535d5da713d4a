"""One stage by another program: `python -m stages.external REQUEST.json`."""

from stages.contract.signals import exit_process
from stages.train.external import main

if __name__ == "__main__":
    exit_process(main())
