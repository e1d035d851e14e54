# What the compiled module offers; tests/architecture/test_native_stub.py compares this file with the module that was built.
