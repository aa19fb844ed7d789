"""The application for `spark-submit`: its arguments are those of `onefold sink`, and Spark's master and settings those of
`spark-submit`.
"""

import sys

from onefold.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["sink", "--submitted"]
    main()
