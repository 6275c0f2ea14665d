# The search service. It runs as a user without rights, and writes only to mounted folders.
#
#   docker build -t dish --build-arg PIP_EXTRA_INDEX_URL=… .    # the index of torch's CPU builds, see PyTorch's "Start
#                                                               # locally" page; without it, CUDA is included: 6 GB
#   docker run --read-only --tmpfs /tmp --cap-drop ALL -p 127.0.0.1:8000:8000 -v "$PWD/data:/data:ro" dish
#
# /data contains model.dish and index.dish. To add items, use --writable and mount /data for writing.
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
