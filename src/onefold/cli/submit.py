"""The application for `spark-submit`, with the arguments of `onefold sink`. `spark-submit` sets Spark's master and options."""

import sys

from onefold.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["sink", "--submitted"]
    main()
