"""MLflow: `python -m pipeline.tracking sync` sends what waits, `ui` shows its page."""

import sys

from pipeline.ledger.mlflow.tracking import main

if __name__ == "__main__":
    sys.exit(main())
