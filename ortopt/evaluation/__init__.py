"""Constants computed ahead, as the kernels of ONNX Runtime compute them."""
