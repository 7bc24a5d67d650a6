"""`python -m topocomm`."""

import sys

from topocomm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
