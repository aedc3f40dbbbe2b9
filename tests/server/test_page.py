"""The page at / in headless Chromium, without any network but the server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from serving import ServerProcess, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="needs Chromium's driver"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    # Nothing but this machine can be reached: a page that needs more would show it.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def find(browser: Any, selector: str) -> list[Any]:
    return list(browser.find_elements("css selector", selector))


def text(browser: Any, selector: str) -> str:
    return str(find(browser, selector)[0].text)


def say(browser: Any, words: str) -> None:
    find(browser, "#text")[0].send_keys(words)
    find(browser, "#send")[0].click()


def test_a_chat_shows_drafted_tokens_and_numbers(browser: Any, server: ServerProcess) -> None:
    browser.get(server.url + "/")
    wait_for(lambda: text(browser, "#state") == "green", 10, "the server's state")
    assert text(browser, "#model") == "model"
    say(browser, "Say something long.")
    wait_for(lambda: find(browser, "#talk .assistant small"), 30, "the end of the answer")
    assert text(browser, "#talk .user") == "Say something long."
    drafted = find(browser, "#talk .assistant .drafted")
    plain = find(browser, "#talk .assistant .plain")
    assert drafted and plain
    colours = {each.value_of_css_property("background-color") for each in (drafted[0], plain[0])}
    assert len(colours) == 2
    assert "tokens · τ" in text(browser, "#talk .assistant small")
    wait_for(lambda: find(browser, "#depths div"), 5, "acceptance by depth")
    assert text(browser, "#speed") != "–"
    assert text(browser, "#cache").endswith("%")
    say(browser, "And more.")
    wait_for(lambda: len(find(browser, "#talk .assistant small")) == 2, 30, "a second answer")
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def test_stopping_an_answer_frees_it(browser: Any, server: ServerProcess) -> None:
    browser.get(server.url + "/")
    wait_for(lambda: text(browser, "#state") == "green", 10, "the server's state")
    browser.execute_script("document.getElementById('most').value = 900")
    say(browser, "For ever.")
    wait_for(lambda: find(browser, "#talk .assistant span"), 10, "the first token")
    find(browser, "#stop")[0].click()
    wait_for(lambda: server.metric("alula_running") == 0, 5, "the end of the sample")


def test_errors_are_shown(browser: Any, server: ServerProcess) -> None:
    browser.get(server.url + "/")
    wait_for(lambda: text(browser, "#state") == "green", 10, "the server's state")
    browser.execute_script("document.getElementById('temperature').value = 9")
    say(browser, "Hot!")
    wait_for(lambda: find(browser, "#talk .error"), 10, "the error")
    assert "temperature" in text(browser, "#talk .error")
