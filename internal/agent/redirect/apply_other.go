//go:build !linux

package redirect

import "errors"

var errOtherSystem = errors.New("connections are redirected on Linux only")

// Apply returns an error: only Linux has nftables.
func (o *Options) Apply() error { return errOtherSystem }

// Undo returns an error: only Linux has nftables.
func Undo() error { return errOtherSystem }
