package rbac

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	networkauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// The action CUSTOM needs two filters. The first one records in metadata which rule matches
// the request. The second one calls the provider if a rule did. While the proxy cannot call the
// provider, both refuse such requests: Envoy applies changes of filters one by one, in any order.

// emptyAuthorizer returns a message of the type of the filter that calls a provider.
func emptyAuthorizer(network bool) proto.Message {
	if network {
		return &networkauthzv3.ExtAuthz{}
	}
	return &httpauthzv3.ExtAuthz{}
}

// calls reports whether the proxy can call the provider. A provider by HTTP decides nothing
// about connections of TCP.
func (a *Authorization) calls(network bool) bool {
	return a.Cluster != "" && (!network || proxy.ProviderOf(a.provider).GetEnvoyExtAuthzGrpc() != nil)
}

// metadataPrefix returns the prefix of the metadata that both filters share.
func (a *Authorization) metadataPrefix() string { return customPrefix + a.name + "_" }

// matched matches the metadata of a request that a rule matched.
func (a *Authorization) matched(filter string) *matcherv3.MetadataMatcher {
	return metadataMatcher(filter, stringValue(valueMatcher(customRule+"*", false)), a.metadataPrefix()+"shadow_effective_policy_id")
}

// checkTimeout bounds the call of a provider that sets no timeout, as with Istio.
const checkTimeout = 600 * time.Second

// provides returns the configuration of the filter that calls the provider.
func (a *Authorization) provides(f AuthorizationFilter) proto.Message {
	if !f.Calls {
		return nil
	}
	if !a.calls(f.Network) {
		return a.refuses(f)
	}
	spec := proxy.ProviderOf(a.provider)
	if f.Network {
		return &networkauthzv3.ExtAuthz{
			StatPrefix: "tcp.", FailureModeAllow: spec.GetEnvoyExtAuthzGrpc().GetFailOpen(), TransportApiVersion: corev3.ApiVersion_V3,
			GrpcService: a.grpcService(spec.GetEnvoyExtAuthzGrpc()), FilterEnabledMetadata: a.matched(FilterNetworkRBAC),
		}
	}
	out := &httpauthzv3.ExtAuthz{TransportApiVersion: corev3.ApiVersion_V3, FilterEnabledMetadata: a.matched(FilterHTTPRBAC)}
	var status string
	if p := spec.GetEnvoyExtAuthzGrpc(); p != nil {
		status = p.GetStatusOnError()
		out.FailureModeAllow, out.ClearRouteCache = p.GetFailOpen(), p.GetClearRouteCache()
		out.WithRequestBody = bufferSettings(p.GetIncludeRequestBodyInCheck())
		out.Services = &httpauthzv3.ExtAuthz_GrpcService{GrpcService: a.grpcService(p)}
	} else {
		p := spec.GetEnvoyExtAuthzHttp()
		status = p.GetStatusOnError()
		out.FailureModeAllow, out.ClearRouteCache = p.GetFailOpen(), p.GetClearRouteCache()
		out.WithRequestBody = bufferSettings(p.GetIncludeRequestBodyInCheck())
		headers := p.GetIncludeRequestHeadersInCheck()
		if len(headers) == 0 {
			headers = p.GetIncludeHeadersInCheck() //nolint:staticcheck // Istio reads it, too
		}
		out.AllowedHeaders = headerPatterns(headers)
		out.Services = &httpauthzv3.ExtAuthz_HttpService{HttpService: a.httpService(p)}
	}
	if code, err := strconv.ParseUint(status, 10, 16); err == nil {
		out.StatusOnError = &typev3.HttpStatus{Code: typev3.StatusCode(code)}
	}
	return out
}

// refuses returns the configuration of a filter that asks nobody and refuses what the policies match.
func (a *Authorization) refuses(f AuthorizationFilter) proto.Message {
	nobody := &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: mesh.BlackHoleCluster},
	}}
	if f.Network {
		return &networkauthzv3.ExtAuthz{
			StatPrefix: "tcp.", TransportApiVersion: corev3.ApiVersion_V3, GrpcService: nobody, FilterEnabledMetadata: a.matched(FilterNetworkRBAC),
		}
	}
	return &httpauthzv3.ExtAuthz{
		TransportApiVersion: corev3.ApiVersion_V3, Services: &httpauthzv3.ExtAuthz_GrpcService{GrpcService: nobody}, FilterEnabledMetadata: a.matched(FilterHTTPRBAC),
	}
}

func (a *Authorization) grpcService(p *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider) *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
			ClusterName: a.Cluster, Authority: a.provider.Host(),
		}},
		Timeout: durationpb.New(cmp.Or(p.GetTimeout().AsDuration(), checkTimeout)),
	}
}

func (a *Authorization) httpService(p *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider) *httpauthzv3.HttpService {
	out := &httpauthzv3.HttpService{
		PathPrefix: p.GetPathPrefix(),
		ServerUri: &corev3.HttpUri{
			Uri: "http://" + a.provider.Host(), Timeout: durationpb.New(cmp.Or(p.GetTimeout().AsDuration(), checkTimeout)),
			HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: a.Cluster},
		},
	}
	if added := p.GetIncludeAdditionalHeadersInCheck(); len(added) > 0 {
		out.AuthorizationRequest = &httpauthzv3.AuthorizationRequest{}
		for _, name := range slices.Sorted(maps.Keys(added)) {
			out.AuthorizationRequest.HeadersToAdd = append(out.AuthorizationRequest.HeadersToAdd, &corev3.HeaderValue{Key: name, Value: added[name]})
		}
	}
	if len(p.GetHeadersToUpstreamOnAllow())+len(p.GetHeadersToDownstreamOnDeny())+len(p.GetHeadersToDownstreamOnAllow()) > 0 {
		out.AuthorizationResponse = &httpauthzv3.AuthorizationResponse{
			AllowedUpstreamHeaders:        headerPatterns(p.GetHeadersToUpstreamOnAllow()),
			AllowedClientHeaders:          headerPatterns(p.GetHeadersToDownstreamOnDeny()),
			AllowedClientHeadersOnSuccess: headerPatterns(p.GetHeadersToDownstreamOnAllow()),
		}
	}
	return out
}

// headerPatterns returns the matchers of names of headers, or nil if there are none.
func headerPatterns(names []string) *matcherv3.ListStringMatcher {
	if len(names) == 0 {
		return nil
	}
	out := &matcherv3.ListStringMatcher{}
	for _, name := range names {
		out.Patterns = append(out.Patterns, valueMatcher(strings.ToLower(name), false))
	}
	return out
}

func bufferSettings(b *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody) *httpauthzv3.BufferSettings {
	if b == nil {
		return nil
	}
	return &httpauthzv3.BufferSettings{
		MaxRequestBytes: b.GetMaxRequestBytes(), AllowPartialMessage: b.GetAllowPartialMessage(), PackAsBytes: b.GetPackAsBytes(),
	}
}
