# The search service: a user without rights, nothing written but what is mounted.
#
#   docker build -t dish --build-arg PIP_EXTRA_INDEX_URL=… .    # the index of torch's CPU builds, as PyTorch's
#                                                               # "Start locally" page names it; without it: CUDA, 6 GB
#   docker run --read-only --tmpfs /tmp --cap-drop ALL -p 127.0.0.1:8000:8000 -v "$PWD/data:/data:ro" dish
#
# /data holds model.dish and index.dish. Items are added with --writable and /data mounted for writing.
FROM python:3.12-slim AS build
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY src /src/src
ARG PIP_EXTRA_INDEX_URL=""
RUN python -m venv /opt/dish \
 && /opt/dish/bin/pip install --no-cache-dir -c /src/constraints.txt "/src[serve]"

FROM python:3.12-slim
COPY --from=build /opt/dish /opt/dish
RUN useradd --system --uid 10001 --no-create-home dish
ENV PATH=/opt/dish/bin:$PATH PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/tmp/kernels
USER 10001
VOLUME /data
EXPOSE 8000
HEALTHCHECK CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=3)"
ENTRYPOINT ["dish"]
CMD ["serve", "--model", "/data/model.dish", "--index", "/data/index.dish", "--host", "0.0.0.0"]
