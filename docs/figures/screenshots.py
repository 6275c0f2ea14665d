"""Pictures of the page over a folder of photos: light, dark, a phone, one photo large.

dish photos FOLDER --no-browser --port 8123 &
python docs/figures/screenshots.py http://127.0.0.1:8123 ID
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import sync_playwright

FIGURES = Path(__file__).parent
VIEWS = {  # name → width, height, theme
    "photos-light": (1280, 860, "light"),
    "photos-dark": (1280, 860, "dark"),
    "photos-phone": (390, 844, "light"),
    "photos-large": (1280, 860, "light"),
    "photos-bits": (1280, 860, "light"),
}


def main(url: str, id: str) -> None:
    """One WebP file per view."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for name, (width, height, theme) in VIEWS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            page.goto(f"{url}/?id={quote(id)}&k=24")
            page.wait_for_selector("#hits li")
            if name == "photos-large":
                page.locator("#hits li").nth(1).locator("button").first.click()
            if name == "photos-bits":
                page.check("#with-bits")
            page.wait_for_timeout(2500)
            with Image.open(io.BytesIO(page.screenshot())) as image:
                image.save(FIGURES / f"{name}.webp", quality=80, method=6)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
