"""What a process of Onefold ends with: one table for all services and commands, which docs/settings.md explains."""

OK = 0  # done, or stopped as asked
FAILED = 1  # the work could not be done; of a verdict: the numbers are wrong
USAGE = 2  # the command, a setting or a file of a pipeline is wrong; nothing was tried
UNKNOWN = 2  # of a verdict: it could not be told, as if nothing had been tried
REFUSED = 3  # going on would lose or mix data: a human decides
UNAVAILABLE = 69  # what is needed did not appear in time, or does not answer; EX_UNAVAILABLE of sysexits.h
INTERRUPTED = 130  # what a shell reports for Ctrl-C
BROKEN_PIPE = 141  # and for a reader that left early, as in `onefold status | head -1`
