package yamldoc

import "go.yaml.in/yaml/v3"

// asBoolean makes the words that are booleans in YAML 1.1 booleans of YAML 1.2. kubectl, istioctl
// and Helm read them so, and the parser reads the words beside true and false as text.
func asBoolean(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode || n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle|yaml.TaggedStyle) != 0 {
		return
	}
	switch n.Value {
	case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "True", "TRUE":
		n.Tag, n.Value = "!!bool", "true"
	case "n", "N", "no", "No", "NO", "off", "Off", "OFF", "False", "FALSE":
		n.Tag, n.Value = "!!bool", "false"
	}
}
