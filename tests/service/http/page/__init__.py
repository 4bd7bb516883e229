"""A package, so that its tests share a browser, which is closed before the tests of other folders."""
