package engineplugin

// Mortal is an engine that can die on its own, such as a process or a fake that is told to.
type Mortal interface {
	// Done is closed when the engine is gone, by its own fault or by Close.
	Done() <-chan struct{}
	// Err says why; nil while the engine lives.
	Err() error
}

// Interrupter is an engine whose running call another goroutine may end early: it returns CANCELED at its next layer.
// No effect when no call runs. Servers use it instead of a context per step, which would cost allocations.
type Interrupter interface {
	Interrupt()
}
