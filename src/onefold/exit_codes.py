"""The exit codes of all services and commands, explained in docs/settings.md."""

OK = 0  # done, or stopped as asked
FAILED = 1  # the work failed; for `verify`: the numbers are wrong
USAGE = 2  # the command, a setting or a file of a pipeline is wrong, and no work was attempted
UNKNOWN = 2  # for `verify`: the result is unknown
REFUSED = 3  # to continue would lose or mix data, so a person must decide
UNAVAILABLE = 69  # a required server does not answer or did not start in time; EX_UNAVAILABLE of sysexits.h
INTERRUPTED = 130  # a shell's exit code for Ctrl-C
BROKEN_PIPE = 141  # a shell's exit code for a closed pipe, as in `onefold status | head -1`
