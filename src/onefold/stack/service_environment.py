"""The environment variables that a service inherits, by the program in the service.

Third parties' programs, and services without code of a pipeline, inherit only necessary variables: a shell may hold keys of
foreign systems. Processors, workers, continuous verifiers, `migrate` and the dashboard import the pipeline's code, which may
read any variable, and inherit all.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

_PROGRAM = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR", "TMPDIR")
# nss_wrapper names the user of a container that runs under a numeric id; memory allocators.
_LIBRARIES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "NSS_WRAPPER_*", "DYLD_*", "MALLOC_*")
_TRUST = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_PYTHON = ("PYTHON*", "VIRTUAL_ENV", "NO_COLOR")
_JVM = ("JAVA_*", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")

POSTGRES = (*_PROGRAM, *_LIBRARIES)
KAFKA = (*_PROGRAM, *_LIBRARIES, *_JVM)
# The sink reads with Kafka's Java client, which may use Kerberos, and writes with libpq.
SINK = (
    *_PROGRAM,
    *_LIBRARIES,
    *_TRUST,
    *_PYTHON,
    *_JVM,
    *_PROXIES,
    "XDG_CACHE_HOME",  # `up` downloads the jars there
    "SPARK_*",
    *("HADOOP_CONF_DIR", "YARN_CONF_DIR"),
    "KRB5*",
    "PG*",
    "ONEFOLD_*",
)


def environment(names: Collection[str] | None, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of `environ` (default: this process's) with a name in `names`.

    Args:
        names: with * for any characters; None: all variables.
    """
    environ = os.environ if environ is None else environ
    return {
        name: value
        for name, value in environ.items()
        if names is None or any(fnmatchcase(name, wanted) for wanted in names)
    }
