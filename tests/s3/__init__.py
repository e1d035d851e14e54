"""A real S3 server in a test: moto's, with s3fs as the driver, installed into `build/s3` by `make store`."""
