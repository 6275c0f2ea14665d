"""The JSON log."""

import json
import logging
import sys

from dish.web.logs import JsonFormatter


def test_record_is_one_line_of_json():
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("dish.web", logging.ERROR, "f.py", 1, "bad %s", ('"quoted"\n',), sys.exc_info())
    record.fields = {"path": "/a\nb", "status": 500}
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["event"]) == ("error", 'bad "quoted"\n')
    assert (found["path"], found["status"]) == ("/a\nb", 500)
    assert "ValueError: two\nlines" in found["traceback"]
