#!/bin/sh
# The tests of the page want a real browser. This installs one as a system package (Debian, as root); `make test` calls
# it only where CI is set. It never fails the build: without a browser those tests are skipped, and say so.
for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  export DEBIAN_FRONTEND=noninteractive
  { timeout 300 apt-get install -qq -y --no-install-recommends chromium ||
    { timeout 120 apt-get update -qq && timeout 300 apt-get install -qq -y --no-install-recommends chromium; }
  } >/dev/null 2>&1 || echo "chromium could not be installed: the tests of the page will be skipped" >&2
fi
exit 0
