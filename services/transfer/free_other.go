//go:build !unix

package transfer

import "errors"

// FreeBytes cannot tell on this system.
func FreeBytes(string) (int64, error) { return 0, errors.ErrUnsupported }
