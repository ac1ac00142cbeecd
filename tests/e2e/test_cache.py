"""Retention as an administrator meets it: edited with a preview, in force for real workers, brought back; warming."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.test_dashboard import SCREENSHOTS, Visit, session_state, visit  # noqa: F401 - fixtures
from tests.e2e.waiting import until
from tests.running import ROOT, System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROMPT = "Below deck the steward keeps a list of all that the galley has in store, and reads it aloud each night. " * 4


def manage(system: System, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=system.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def preview(page: Page, *, life: str) -> None:
    page.get_by_role("group", name="Class chat").get_by_label("Life since last use").fill(life)
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.get_by_role("heading", name="What saving would do")).to_be_visible()


def test_a_life_is_previewed_saved_and_restored(visit: Visit, system: System) -> None:  # noqa: F811
    page = visit.open("/cache/policy")
    preview(page, life="36 h")
    expect(page.locator("#policy-preview ins").first).to_have_text("36 h")
    page.screenshot(path=SCREENSHOTS / "cache-preview.png")
    page.get_by_label("Reason, for the history").fill("the season is over")
    page.get_by_role("button", name="Save as version").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Retention history")
    newest = page.locator("tbody tr").first
    expect(newest).to_contain_text("In force")
    expect(newest).to_contain_text("the season is over")
    assert "chat" in manage(system, "retention", "show")
    page.locator("tbody tr").nth(1).get_by_role("link", name="Restore").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("7 d")
    dialog.get_by_label("Reason, for the history").fill("it is not")
    dialog.get_by_role("button", name="Restore").click()
    expect(page.locator("tbody tr").first).to_contain_text("it is not")


def test_what_cannot_be_is_refused_where_it_stands(visit: Visit) -> None:  # noqa: F811
    page = visit.open("/cache/policy")
    page.get_by_role("group", name="Class chat").get_by_label("Byte budget").fill("9000 PiB")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("more than the store may hold")
    expect(page.get_by_role("button", name="Save as version")).to_have_count(0)


def test_prompts_are_warmed_and_pinned_and_the_next_request_hits(
    visit: Visit,  # noqa: F811
    system: System,
    tmp_path: Path,
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(PROMPT + "\n")
    page = visit.open("/cache/warming")
    page.get_by_label("File").set_input_files(file)
    page.get_by_label("Pin as").fill("stewards-list")
    page.get_by_role("button", name="Warm", exact=True).click()
    expect(page.locator("#jobs")).to_contain_text("Done", timeout=60_000)
    expect(page.locator("#jobs")).to_contain_text("pinned as stewards-list")
    reply = system.client().chat.completions.create(
        model="smollm2", max_tokens=1, messages=[{"role": "user", "content": PROMPT.strip()}]
    )
    usage: Any = reply.usage
    assert usage.prompt_tokens_details.cached_tokens >= usage.prompt_tokens - 32
    until("the pin holds", lambda: "pinned 0 B" not in manage(system, "store", "stats"), every_s=2)
    page.reload()
    page.get_by_role("link", name="Remove pin stewards-list").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("the test is over")
    page.get_by_role("dialog").get_by_role("button", name="Remove pin").click()
    expect(page.get_by_role("link", name="Remove pin stewards-list")).to_have_count(0)


def test_the_cache_page_lives(visit: Visit) -> None:  # noqa: F811
    page = visit.open("/cache")
    expect(page.locator("[data-live]")).to_have_text("Live")
    expect(page.locator("[data-chart=split] [data-legend] tbody tr")).to_have_count(4)
    page.get_by_role("link", name="Purge").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type its name").fill("something else")
    dialog.get_by_label("Reason").fill("no reason")
    dialog.get_by_role("button", name="Purge").click()
    expect(dialog.get_by_role("alert")).to_contain_text("to confirm")
