// Package model holds what the gateway needs of the served model: tokenizer, chat template, end tokens and names. It
// reads them from the model file, weights excepted.
package model
