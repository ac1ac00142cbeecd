"""The dashboard as people meet it: a real browser, the whole system behind it. Screenshots go to build/screenshots/."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.e2e.waiting import until
from tests.running import MODEL, ROOT, System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

AXE = ROOT / "dashboard" / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
SCREENSHOTS = ROOT / "build" / "screenshots"
SIZES = {"desktop": (1280, 860), "phone": (390, 844)}
PAGES = {
    "overview": "/",
    "workers": "/workers",
    "cache": "/cache",
    "cache-policy": "/cache/policy",
    "cache-warming": "/cache/warming",
    "playground": "/playground",
    "keys": "/keys",
    "key-form": "/keys/new",
    "audit": "/audit",
    "not-found": "/nowhere",
}
LONG_PROMPT = "The ship's cook counts what is left in the galley before each meal. " * 20
WAIT_MS = 30_000
SETTLED = """() => document.fonts.status === "loaded"
  && (document.querySelector("[data-live]")?.dataset.state ?? "live") === 'live'"""
"""Fonts are there, and a page with a live feed has it."""


expect.set_options(timeout=WAIT_MS)


@dataclass
class Visit:
    """A signed-in page, and what went wrong on it: errors in the console, requests to other hosts."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page


def new_context(browser: Browser, size: str = "desktop", theme: Any = "light") -> BrowserContext:
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, timezone_id="Europe/Stockholm"
    )
    context.set_default_timeout(WAIT_MS)
    return context


def sign_in(page: Page, system: System) -> None:
    page.goto(system.url + "/login")
    page.get_by_label("User name").fill(system.first_run["admin_user"])
    page.get_by_label("Password").fill(system.first_run["admin_password"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


@pytest.fixture(scope="module")
def session_state(system: System, browser: Browser) -> Any:
    """One sign-in for all: the throttle counts, and Argon2 takes its time."""
    context = new_context(browser)
    sign_in(context.new_page(), system)
    state = context.storage_state()
    context.close()
    return state


def visiting(system: System, context: BrowserContext, state: Any) -> Visit:
    context.add_cookies(state["cookies"])
    visit = Visit(page=context.new_page(), url=system.url)

    def console(message: Any) -> None:
        # The status of a page that is not there, or of an answer that a test asked to fail, is no fault of the page.
        if message.type == "error" and "Failed to load resource" not in message.text:
            visit.complaints.append(f"console: {message.text}")

    def request(sent: Any) -> None:
        address = urlsplit(sent.url)
        if address.scheme not in ("data", "blob") and address.netloc != urlsplit(system.url).netloc:
            visit.complaints.append(f"request to another host: {sent.url}")

    visit.page.on("console", console)
    visit.page.on("pageerror", lambda error: visit.complaints.append(f"script: {error}"))
    visit.page.on("request", request)
    return visit


@pytest.fixture
def visit(system: System, browser: Browser, session_state: Any) -> Iterator[Visit]:
    context = new_context(browser)
    visited = visiting(system, context, session_state)
    yield visited
    context.close()
    assert visited.complaints == []


def accessibility_faults(page: Page) -> list[str]:
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run(document)).violations")
    return [f"{fault['id']}: {fault['nodes'][0]['html'][:200]}" for fault in found]


@pytest.fixture(scope="module")
def traffic(system: System) -> None:
    """Some requests, so that the charts have something to show."""
    client = system.client()

    def ask(number: int) -> None:
        client.chat.completions.create(
            model=MODEL,
            max_tokens=16,
            messages=[{"role": "user", "content": f"{LONG_PROMPT} What does he count in week {number % 3}?"}],
        )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, range(6)))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.usefixtures("traffic")
def test_every_page_is_accessible_fits_and_keeps_to_itself(
    system: System, browser: Browser, session_state: Any, size: str, theme: str
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    context = new_context(browser, size, theme)
    visit = visiting(system, context, session_state)
    faults: dict[str, Any] = {}
    for name, path in PAGES.items():
        page = visit.open(path)
        page.wait_for_function(SETTLED)
        page.screenshot(path=SCREENSHOTS / f"{name}-{size}-{theme}.png")
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        faults[name] = (accessibility_faults(page), overflow)
    context.close()
    assert {name: found for name, found in faults.items() if found != ([], 0)} == {}
    assert visit.complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_the_sign_in_page(system: System, browser: Browser, size: str, theme: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    context = new_context(browser, size, theme)
    page = context.new_page()
    page.goto(system.url + "/workers")
    expect(page).to_have_url(re.compile("/login"))
    page.get_by_label("User name").fill("nobody-at-all")
    page.get_by_label("Password").fill("no such password")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("do not match")
    page.screenshot(path=SCREENSHOTS / f"sign-in-{size}-{theme}.png")
    assert accessibility_faults(page) == []
    context.close()


@pytest.mark.usefixtures("traffic")
def test_the_overview_lives(visit: Visit, system: System) -> None:
    page = visit.open("/")
    expect(page.locator("[data-live]")).to_have_text("Live")
    expect(page.locator("[data-chart=tokens] [data-legend] tbody tr")).to_have_count(3)
    workers = page.locator("#worker-list tr")
    expect(workers).to_have_count(2)
    expect(workers.first.locator(".state")).to_have_text("Ready")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            system.client().chat.completions.create,
            model=MODEL,
            max_tokens=60,
            messages=[{"role": "user", "content": "Tell a long story about a kitchen on a ship."}],
        )
        expect(page.locator("[data-tile=output] [data-value]")).not_to_have_text(re.compile("^[0–]$"))
        expect(page.locator("[data-tile=ttft] [data-value]")).not_to_have_text("–")
        assert answer.result(120).usage is not None
    page.screenshot(path=SCREENSHOTS / "overview-busy.png")


def test_a_line_can_be_hidden_and_a_window_chosen_with_the_keyboard(visit: Visit) -> None:
    page = visit.open("/")
    expect(page.locator("[data-live]")).to_have_text("Live")
    toggle = page.locator("[data-chart=tokens]").get_by_role("button", name="Hit")
    toggle.focus()
    page.keyboard.press("Enter")
    expect(toggle).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name="1 h").focus()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="1 h")).to_have_attribute("aria-pressed", "true")


def test_the_first_tab_stop_skips_to_the_content(visit: Visit) -> None:
    page = visit.open("/workers")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to content")
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()


def test_a_theme_is_kept(visit: Visit) -> None:
    page = visit.open("/workers")
    page.locator(".sidebar .menu summary").click()
    page.locator(".sidebar").get_by_role("button", name="Dark").click()
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_a_chat_streams_and_its_ticket_says_what_it_took(visit: Visit) -> None:
    page = visit.open("/playground")
    page.get_by_label("Most tokens to generate").fill("12")
    for turn in (1, 2):
        page.get_by_label("Message", exact=True).fill(LONG_PROMPT)
        page.keyboard.press("Enter")
        expect(page.locator(".turn-assistant .turn-stats")).to_have_count(turn)
    expect(page.locator(".turn-assistant .turn-text").first).not_to_be_empty()
    ticket = {
        name: page.locator(f"[data-ticket={name}]").inner_text() for name in ("ttft", "prompt", "cached", "finish")
    }
    assert re.fullmatch(r"[\d.,]+ m?s", ticket["ttft"])
    assert 0 < int(ticket["cached"].replace(",", "")) < int(ticket["prompt"].replace(",", ""))
    assert ticket["finish"] in ("stop", "length")
    page.screenshot(path=SCREENSHOTS / "playground-chat.png")


def test_escape_stops_an_answer(visit: Visit) -> None:
    page = visit.open("/playground")
    page.get_by_label("Most tokens to generate").fill("800")
    page.get_by_label("Message", exact=True).fill("Count from one to three hundred in words.")
    page.keyboard.press("Enter")
    expect(page.locator(".turn-assistant .turn-text")).not_to_be_empty()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".turn-assistant .turn-stats")).to_have_text("Stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_a_refusal_is_shown_with_its_code(visit: Visit) -> None:
    page = visit.open("/playground")
    page.get_by_label("Message", exact=True).fill("word " * 9_000)
    page.keyboard.press("Enter")
    expect(page.locator(".turn-assistant .notice")).to_contain_text("context_length_exceeded")


def test_a_key_is_made_used_and_revoked(visit: Visit, system: System) -> None:
    page = visit.open("/keys")
    page.get_by_role("link", name="New key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("from the browser")
    dialog.get_by_role("button", name="Create key").click()
    raw = dialog.locator("#new-key").inner_text()
    assert raw.startswith("gk-")
    assert accessibility_faults(page) == []
    dialog.get_by_role("link", name="Done").click()
    expect(page.get_by_text(raw)).to_have_count(0)

    client = openai.OpenAI(base_url=f"{system.url}/v1", api_key=raw, max_retries=0)
    assert MODEL in {model.id for model in client.models.list()}

    page.keyboard.press("/")
    expect(page.get_by_label("Search keys")).to_be_focused()
    page.keyboard.type("from the browser")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Revoke from the browser").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("a test is over")
    page.get_by_role("button", name="Revoke key").click()
    expect(page.locator("tbody tr").first).to_contain_text("Revoked")
    until("the key opens nothing any more", lambda: refused(client))
    page = visit.open("/audit?action=key.revoke")
    expect(page.locator("tbody")).to_contain_text("a test is over")


def refused(client: openai.OpenAI) -> bool:
    try:
        client.models.list()
    except openai.AuthenticationError:
        return True
    return False


def test_the_page_comes_back_by_itself_after_a_restart_of_the_gateway(visit: Visit, system: System) -> None:
    page = visit.open("/")
    live = page.locator("[data-live]")
    expect(live).to_have_text("Live")
    os.kill(system.recorded()["gateway"], signal.SIGKILL)
    expect(live).to_contain_text("Reconnecting")
    expect(page.locator("#announcements")).to_contain_text("Live updates lost")
    expect(live).to_have_text("Live", timeout=60_000)
    # What the browser itself says of refused connections is not ours.
    visit.complaints[:] = [text for text in visit.complaints if "WebSocket connection" not in text]
