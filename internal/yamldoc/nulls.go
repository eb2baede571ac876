package yamldoc

import (
	"encoding/json"

	"sigs.k8s.io/yaml"
)

// WithoutNulls returns the JSON of a YAML text without the fields whose value is null. In Helm
// values null means that a field is not set; a decoder may read it as a zero, such as a quantity.
func WithoutNulls(text []byte) ([]byte, error) {
	var value any
	if err := yaml.Unmarshal(text, &value); err != nil {
		return nil, err
	}
	return json.Marshal(withoutNulls(value))
}

func withoutNulls(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			if field == nil {
				delete(value, name)
			} else {
				value[name] = withoutNulls(field)
			}
		}
	case []any:
		for i := range value {
			value[i] = withoutNulls(value[i])
		}
	}
	return value
}
