"""Validation of searches with filters and rescoring, and the codes and outputs of uploaded pictures."""

from __future__ import annotations

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from dish.index.rescore import shortlist_size
from dish.web.collection import Collection, SearchRange
from dish.web.limits import Limits, in_words
from dish.web.routing import reserve
from dish.web.schemas import DEFAULT_K, ImageSearchForm, SearchRequest

CANDIDATE_BYTES = 32  # of memory for an item of a shortlist: its row, its distance, its score


def range_of(
    body: SearchRequest | ImageSearchForm, collection: Collection, limits: Limits, request: Request
) -> SearchRange:
    """Return what a search asks for. Takes the memory for its shortlist from that of all answers."""
    k = DEFAULT_K if body.k is None and body.radius is None else body.k
    ids = None if body.ids is None else tuple(body.ids)
    labels = None if body.labels is None else tuple(body.labels)
    wanted = SearchRange(k, body.radius, ids, labels, body.rescore, body.shortlist)
    if wanted.rescore is not None:
        _check_start(body, collection, wanted.rescore)
        reserve(request, _shortlist_bytes(wanted, collection, limits))
    return wanted


def _check_start(body: SearchRequest | ImageSearchForm, collection: Collection, rescore: str) -> None:
    """Reject a rescored search whose query has no real outputs, or no float vector."""
    vectors = collection.index.snapshot().vectors
    if rescore == "float" and vectors is None:
        raise HTTPException(422, "rescore=float: this server has no float vectors: start it with --vectors")
    if not isinstance(body, SearchRequest):
        return
    if body.code is not None:
        raise HTTPException(422, "rescore needs a vector or a picture: a code alone has no outputs and no vector")
    if rescore == "asymmetric" and body.id is not None:
        raise HTTPException(422, "rescore=asymmetric needs a vector or a picture: the index has no outputs of items")


def _shortlist_bytes(wanted: SearchRange, collection: Collection, limits: Limits) -> int:
    """Return the memory that rescoring takes; reject a shortlist that is too long."""
    assert wanted.k is not None
    most = shortlist_size(limits.max_k, None)
    if wanted.shortlist is not None and not wanted.k <= wanted.shortlist <= most:
        raise HTTPException(422, f"shortlist must be between k, {wanted.k}, and {most:,}")
    vectors = collection.index.snapshot().vectors
    width = 0 if vectors is None or wanted.rescore != "float" else vectors.rows.shape[1]
    n = shortlist_size(wanted.k, wanted.shortlist)
    size = n * (CANDIDATE_BYTES + 16 * width)  # two arrays of float64
    if size > limits.max_answer:
        raise HTTPException(
            413,
            f"rescoring {n:,} vectors of {width:,} numbers would take {in_words(size)}, at most "
            f"{in_words(limits.max_answer)} are allowed: ask for a smaller k or shortlist",
        )
    return size


def encode_picture(
    collection: Collection, data: bytes, max_pixels: int, rescore: str | None
) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None]:
    """Return the code (1, bytes) of an uploaded picture, and its outputs or its vector if it is to be rescored."""
    if rescore is None:
        return collection.encode_picture(data, max_pixels), None
    row = collection.row_of(data, max_pixels)
    return collection.hasher.transform(row), (
        collection.outputs(row) if rescore == "asymmetric" else np.asarray(row, np.float32)
    )[0]
