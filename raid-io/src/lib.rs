//! Members, buffers, the driver loop.
