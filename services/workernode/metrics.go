package workernode

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"

	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
)

// page is a port for people and their tools.
type page struct {
	flag     string
	listener net.Listener
	handler  http.Handler
}

// openPages opens the ports that the flags ask for.
func (n *node) openPages() error {
	f := n.cfg.Flags
	if f.metrics != nil {
		meter := f.metrics.MeterProvider().Meter("github.com/tandem-inference/tandem/services/workernode")
		if err := n.measure(meter); err != nil {
			return err
		}
		if err := n.openPage("--metrics-listen", f.MetricsListen, telemetry.MetricsPage(f.metrics)); err != nil {
			return err
		}
	}
	if f.level == nil {
		return nil
	}
	return n.openPage("--admin-listen", f.AdminListen, telemetry.AdminPage(*f.level))
}

func (n *node) openPage(flag, address string, h http.Handler) error {
	if address == "" {
		return nil
	}
	l, err := telemetry.Listen(address)
	if err != nil {
		n.closePages()
		return fmt.Errorf("%s: %w", flag, err)
	}
	n.pages = append(n.pages, page{flag, l, h})
	// The port may be one that the system chose.
	n.log.Info("port opened", zap.String(telemetry.KeyFlag, flag), zap.String(telemetry.KeyAddress, l.Addr().String()))
	return nil
}

func (n *node) closePages() {
	for _, p := range n.pages {
		_ = p.listener.Close()
	}
}

// measure has the counters of heartbeats, slots and the engine read at collection time, under the names that the
// gateway's metrics give them.
func (n *node) measure(m metric.Meter) error {
	counters, gauges := map[string]metric.Float64ObservableCounter{}, map[string]metric.Float64ObservableGauge{}
	var all []metric.Observable
	for name, help := range registry.Counters {
		c, err := m.Float64ObservableCounter(registry.MetricName(name), metric.WithDescription(help))
		if err != nil {
			return err
		}
		counters[name], all = c, append(all, c)
	}
	for name, help := range registry.Gauges {
		g, err := m.Float64ObservableGauge(registry.MetricName(name), metric.WithDescription(help))
		if err != nil {
			return err
		}
		gauges[name], all = g, append(all, g)
	}
	up, err := m.Int64ObservableGauge("tandem.worker.up", metric.WithDescription("1 while the worker takes work, else 0."))
	if err != nil {
		return err
	}
	busy, err := m.Int64ObservableGauge("tandem.lanes.busy", metric.WithDescription("Slots in use."))
	if err != nil {
		return err
	}
	restarts, err := m.Int64ObservableCounter("tandem.worker.restarts",
		metric.WithDescription("Restarts of the engine's process."))
	if err != nil {
		return err
	}
	engine, err := newEngineInstruments(m)
	if err != nil {
		return err
	}
	_, err = m.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		h := n.heartbeat()
		for name, v := range h.GetCounters() {
			switch {
			case v < 0 || math.IsNaN(v) || math.IsInf(v, 0):
			case counters[name] != nil:
				o.ObserveFloat64(counters[name], v)
			case gauges[name] != nil:
				o.ObserveFloat64(gauges[name], v)
			}
		}
		ready := int64(0)
		if h.GetState() == registry.StateReady {
			ready = 1
		}
		o.ObserveInt64(up, ready)
		o.ObserveInt64(busy, int64(h.GetLanesBusy()))
		o.ObserveInt64(restarts, int64(h.GetEngineRestarts()))
		orphans := int64(h.GetOrphanedSequences())
		o.ObserveInt64(engine.handles, int64(h.GetEngineSequences())-orphans,
			metric.WithAttributes(attribute.String("owner", "request")))
		o.ObserveInt64(engine.handles, orphans, metric.WithAttributes(attribute.String("owner", "none")))
		if w, ok := n.worker.(Measured); ok {
			engine.observe(o, w.Measure(ctx))
		}
		return nil
	}, append(append(all, up, busy, restarts), engine.all()...)...)
	return err
}
