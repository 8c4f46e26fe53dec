"""The examples of the page on Kubernetes: what they say is what a pod gets."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from upshift.backends.kubernetes.api import JOBSETS, QUEUES, RULES

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "kubernetes.md"


def block(title: str) -> str:
    """A block of the page."""
    found = re.search(rf'^```\w+ title="{title}"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_role_of_the_page_has_all_that_is_asked_for() -> None:
    role = next(yaml.safe_load_all(block("upshift-rbac.yaml")))
    given = {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    for rule in (*RULES, QUEUES, JOBSETS):
        assert given[(rule.group, rule.resource)] >= set(rule.verbs), rule
