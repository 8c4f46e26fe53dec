"""How the bootstrap reads an object of Google Cloud Storage; see :mod:`upshift.code.bootstrap`."""

import json
import os
import sys
from urllib.error import HTTPError
from urllib.parse import quote

from upshift.code.bootstrap import ask


def from_bucket(address: str) -> bytes:
    """https://cloud.google.com/storage/docs/xml-api/get-object-download"""
    at = os.environ.get("STORAGE_EMULATOR_HOST")
    headers = {} if at else {"authorization": f"Bearer {token()}"}
    at = (at if "://" in at else f"http://{at}") if at else "https://storage.googleapis.com"
    return ask(f"{at.rstrip('/')}/{quote(address, safe='/-_.~')}", headers)


def token() -> str:
    """As pods of GKE and machines get it: that of their service account."""
    if os.environ.get("CLOUDSDK_AUTH_ACCESS_TOKEN"):
        return os.environ["CLOUDSDK_AUTH_ACCESS_TOKEN"]
    host = os.environ.get("GCE_METADATA_HOST") or "169.254.169.254"
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    try:
        said = ask(url, {"metadata-flavor": "Google"}, direct=True, patience=5)
    except HTTPError as error:
        if error.code != 404:
            raise
    except OSError:
        pass
    else:
        found: str = json.loads(said)["access_token"]
        return found
    sys.exit("upshift: this node has no Google Cloud credentials: give its pod or machine a service account")
