"""The toy pipeline of the crash loop, where a gateway process can find it."""

from tests.crash.workloads import make_pipeline

pipe = make_pipeline()
