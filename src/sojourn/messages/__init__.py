"""Message passing over batches of windows: arrays in, arrays out, the batch last."""
