"""For tests of Holdfast and of what is built on it: contract suites, stand-ins, crash harness."""
