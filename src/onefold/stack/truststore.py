"""Lets Java trust what this machine trusts: a company's own root certificate is known to the system, not to a Java in
a wheel.
"""

from __future__ import annotations

import os
import re
import ssl
import warnings
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

STORE_PASSWORD = b"public"  # Java wants one; the store holds public certificates only
CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def java_flags(scratch: Path) -> list[str]:
    """JVM flags for a trust store, written into `scratch`, of the machine's certificates; none when the machine names
    no bundle.
    """
    bundle = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if not bundle or not Path(bundle).is_file():
        return []
    trusted = [pkcs12.PKCS12Certificate(found, None) for found in _certificates(Path(bundle).read_bytes())]
    store = scratch / "trusted.p12"
    store.write_bytes(pkcs12.serialize_java_truststore(trusted, BestAvailableEncryption(STORE_PASSWORD)))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={STORE_PASSWORD.decode()}"]


def _certificates(bundle: bytes) -> list[x509.Certificate]:
    """The bundle's certificates, one by one: a single odd one in a system's bundle must not cost all the others."""
    found = []
    with warnings.catch_warnings():
        # Old roots with odd serial numbers are the system's choice, not the user's concern.
        warnings.simplefilter("ignore")
        for text in CERTIFICATE.findall(bundle):
            try:
                found.append(x509.load_pem_x509_certificate(text))
            except ValueError:
                continue
    return found
