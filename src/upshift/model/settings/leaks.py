"""What looks like a secret where none belongs: in an image's variable, an address, a file's name.

A name can be wrong about that (``PAD_TOKEN``) and a value can be too short to tell. So a name counts by its
last words, and only with a value that could be one; a value counts by the forms that services give to theirs.
"""

from __future__ import annotations

import fnmatch
import functools
import re

# Texts, not compiled: most processes that import this never look for a secret.
_NAMED = (
    r"(?i:.*(?:password|passwd|passphrase|secret|token|api_?key|credentials?))"
    r"|(?i:(?:.*_)?(?:pass|pwd))"
    r"|(?i:(?:.*_)?(?:access|account|auth|encryption|license|master|private|secret|signing|storage)_?key)"
)
_SPECIAL_TOKEN = r"(?i:(?:.*_)?(?:bos|cls|eos|mask|pad|sep|special|stop|unk)_?token)"
_OF_A_PASSWORD = r"(?i:.*(?:pass|passwd|password|passphrase|pwd|secret))"
_HARMLESS = r"(?i:|true|false|yes|no|on|off|none|null|auto|default|[01]|<.*>|\[.*\])"
_NUMBER = r"-?[0-9.]{1,6}"
# A key in base64 may begin with a slash, but hardly go on like a path.
_PLACE = r"(?:~|\.{1,2}|/(?:[a-z][a-z0-9_.-]+|Users|Volumes))/\S*"
_PLACE += r"|[\w./-]+\.(?:cfg|conf|crt|ini|json|key|pem|toml|txt|ya?ml)"

_FORMS = (
    ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{16,}"),
    ("a GitHub token", r"\b(?:gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,})"),
    ("a GitLab token", r"\bglpat-[\w-]{16,}"),
    ("an AWS access key", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("a Google API key", r"\bAIza[\w-]{35}"),
    ("a Slack token", r"\bxox[abeoprs]-[\w-]{10,}"),
    ("an API key", r"\bsk-[\w-]{20,}"),
    ("a package index token", r"\bpypi-[\w-]{50,}"),
    ("a password", r"(?i)\b(?:password|passwd|pwd|accountkey|sharedaccesskey)=(?!\$)[^;&\s]{4,}"),
    ("a web token", r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\."),
)
_IN_ADDRESS = r"(?i)(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s/@:]*:(?P<password>[^\s/@]+)@"
_LOGIN = r"(?i)(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://(?P<login>[^\s/@]*)@"
_REFERENCE = r"\$\{?\w+\}?"


_SECRET_FILES = (
    *(
        ".env",
        ".env.*",
        "*.env",
        ".envrc",
        "*.pem",
        "*.key",
        "*.p12",
        "*.pfx",
        "*.jks",
        "*.keystore",
        "*.kdbx",
    ),
    *("*.ppk", "*.gpg", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*_rsa", "*_ed25519"),
    *("credentials", "credentials.*", "*credentials.json", "client_secret*", "service_account*.json"),
    *("service-account*.json", "secret.*", "secrets", "secrets.*", ".secrets", "*.secret", "kubeconfig"),
    *(".netrc", "_netrc", ".pypirc", ".npmrc", ".pgpass", ".my.cnf", ".htpasswd", ".git-credentials"),
    *(".dockercfg", ".vault-token", ".databrickscfg", ".s3cfg", ".boto", "application_default_credentials*"),
    *(".ssh", ".aws", ".azure", ".gnupg", ".kube", ".huggingface", "kaggle.json", "rclone.conf"),
    *(
        "*.tfstate",
        "*.tfstate.*",
        "*.tfvars",
        "*.tfvars.*",
        ".terraformrc",
        "terraform.rc",
        "pip.conf",
        "pip.ini",
    ),
    *(
        "*password.txt",
        "*passwords.txt",
        "*passwd.txt",
        "*vault_pass*",
        "htpasswd",
        "my.cnf",
        ".authinfo*",
        "authinfo",
    ),
    *(".token", "token.txt", "*_token.txt", "*_token", "*[-_]credentials", "*[-_]key.json"),
    *("*.docker/config.json", "*huggingface/stored_tokens", "*gh/hosts.yml", "*gcloud/*.db"),
)
"""Names of files and folders that look like secrets, or the ends of their paths, whatever their case."""

_SECRET_UNLESS_FOLDERS = ("password", "passwords", "secret", "token", "api_key*", "apikey*")
"""Names that look like secrets of files only: a package of Python modules may be called so."""

_HARMLESS_FILES = (
    "*.example",
    "*.sample",
    "*.template",
    "*.dist",
    "*.pub",
    "*.py",
    "*.pyi",
    "*.ipynb",
    "*.md",
    "*.rst",
)
"""Names that do not, though one of :data:`_SECRET_FILES` fits."""


def looks_secret(name: str, value: str) -> str | None:
    """Why a variable must be taken for a secret; None: it need not.

    Parameters
    ----------
    name, value
        Of the variable.

    Returns
    -------
    str or None
        In words that do not show the value: ``"its name says so"``.
    """
    reason = secret_in(value)
    if reason is not None:
        return f"its value holds {reason}"
    named = re.fullmatch(_NAMED, name) and not re.fullmatch(_SPECIAL_TOKEN, name)
    if not named or re.fullmatch(_HARMLESS, value) or re.fullmatch(_PLACE, value):
        return None
    if re.fullmatch(_NUMBER, value) and not re.fullmatch(_OF_A_PASSWORD, name):
        return None
    return "its name says so"


def secret_in(text: str) -> str | None:
    """What kind of secret a text holds by its form, such as ``"a GitHub token"``; None: none that is known.

    A password in an address counts, unless it is a reference to a variable: ``https://me:${TOKEN}@host/``.
    """
    for kind, form in _FORMS:
        if re.search(form, text):
            return kind
    if any(not re.fullmatch(_REFERENCE, found["password"]) for found in re.finditer(_IN_ADDRESS, text)):
        return "the password of an address"
    return None


def unexpanded_in(text: str) -> bool:
    """Whether a login in an address refers to a variable in another way than ``${TOKEN}``."""
    logins = (found["login"] for found in re.finditer(_LOGIN, text))
    return any("$" in re.sub(r"\$\{[A-Z0-9_]+\}", "", login) for login in logins)


def is_secret_file(path: str) -> bool:
    """Whether a file, or a folder (with ``/`` at its end), looks like a secret by what it is called."""
    folded = path.lower()
    name = folded.rstrip("/").rpartition("/")[2]
    if _named(_HARMLESS_FILES).match(name):
        return False
    if not path.endswith("/") and _named(_SECRET_UNLESS_FOLDERS).match(name):
        return True
    return any(_named(_SECRET_FILES).match(text) for text in (name, folded))


@functools.cache
def _named(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, patterns)))
