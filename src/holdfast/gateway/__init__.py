"""The HTTP door: clients create runs, upload chunks, look, fetch results. The only importer of
FastAPI, Starlette and uvicorn. What it speaks: docs/http-api.md.
"""
