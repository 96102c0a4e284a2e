"""``python -m pagemill.cli``: the same as the ``pagemill`` command."""

import sys

from pagemill.cli.app import main

sys.exit(main())
