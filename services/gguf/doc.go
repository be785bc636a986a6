// Package gguf reads, checks, describes and writes GGUF model files (versions 2 and 3).
//
// A file is mapped into memory and every rule of the container is checked once, at Open: after that the metadata
// accessors and Data cannot run out of bounds. Weights are never copied. A sharded model (base-00001-of-0000N.gguf) is
// opened through its first shard and appears as one File.
//
// A DFlash draft in safetensors (config.json and model.safetensors) is read too. It appears as a GGUF of the
// architecture "dflash".
//
// Shapes are in ggml order ("ne"): the first dimension is the contiguous one, so a weight with `in` inputs and `out`
// outputs is [in, out].
//
// What the package does not do: decode quantised blocks (the engine does), check numbers inside tensors, or hold
// model code.
package gguf
