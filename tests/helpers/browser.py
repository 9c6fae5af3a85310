"""Pages of comparisons of all kinds, made once, and one headless Chromium for all tests."""

import shutil

import pytest

from helpers import page_cases


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """Name of a case -> the path of its page, made when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("pages"), {}

    def path(name):
        if name not in made:
            made[name] = page_cases.write(name, folder / f"{name}.html")
        return made[name]

    return path


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """A headless Chromium that may look nothing up."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("Chromium is missing: apt-get install chromium chromium-driver")
    from selenium import webdriver  # only those who have a browser need it  # noqa: PLC0415
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    quiet = (
        "no-first-run disable-background-networking disable-component-update disable-sync disable-quic disable-gpu"
        " no-sandbox hide-scrollbars"
    )
    # with it, a page reloaded on a loaded machine may read localStorage as it was before the last write
    quiet += " disable-features=RenderDocument"
    for word in [
        "headless=new",
        *quiet.split(),
        f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
        "window-size=1280,900",
    ]:
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()
