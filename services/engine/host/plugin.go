package host

import (
	"context"
	"errors"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

// pluginName is the only plugin that an engine program serves.
const pluginName = "engine"

// EngineVersion rises with every incompatible change of tandem.engine.v1.
const EngineVersion = 3

// Handshake lets host and engine program recognise each other.
var Handshake = goplugin.HandshakeConfig{
	ProtocolVersion:  EngineVersion,
	MagicCookieKey:   "TANDEM_ENGINE_PLUGIN",
	MagicCookieValue: "8e1b6a52c7d94f03",
}

// adapter is the go-plugin side of an engine's services.
type adapter struct {
	goplugin.NetRPCUnsupportedPlugin
	server *Server // nil in the host
}

// GRPCServer implements goplugin.GRPCPlugin.
func (a *adapter) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	if a.server == nil {
		return errors.New("this side is the host")
	}
	a.server.Register(s)
	return nil
}

// GRPCClient implements goplugin.GRPCPlugin: the host opens engines on the bare connection.
func (a *adapter) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// PluginSet is what an engine program serves with go-plugin; nil is the host's side.
func PluginSet(server *Server) goplugin.PluginSet {
	return goplugin.PluginSet{pluginName: &adapter{server: server}}
}
