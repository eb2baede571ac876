package inject

import "fmt"

// Bounds of a pod. They are far above what a node runs or the API server stores.
const (
	maxContainers = 1_000
	maxListItems  = 10_000 // of each list, such as volumes or the env of a container
	maxValues     = 100_000
	maxTemplates  = 50
	maxDepth      = 100
	// maxAnnotations bounds the names and values of annotations, in bytes, as API servers do.
	maxAnnotations = 256 << 10
)

// checkSize refuses a pod with too many items, and containers with the same name, which the API server
// would refuse, too.
func checkSize(pod map[string]any) error {
	names, containers := make(map[string]bool), 0
	for _, list := range []string{initContainers, appContainers, "ephemeralContainers"} {
		for _, c := range containersOf(pod, list) {
			name, _ := c["name"].(string)
			if name != "" && names[name] {
				return fmt.Errorf("spec.%s: two containers have the name %.100q", list, name)
			}
			names[name] = true
			if containers++; containers > maxContainers {
				return fmt.Errorf("spec.%s: the pod has more than %d containers", list, maxContainers)
			}
		}
	}
	values := 0
	return checkValues(pod, "", 0, &values)
}

// checkValues counts the values below a field, and refuses too many.
func checkValues(value any, field string, depth int, values *int) error {
	if *values++; *values > maxValues {
		return fmt.Errorf("the pod has more than %d values", maxValues)
	}
	if depth > maxDepth {
		return fmt.Errorf("field %.100q has more than %d levels", field, maxDepth)
	}
	switch v := value.(type) {
	case map[string]any:
		for name, item := range v {
			if err := checkValues(item, name, depth+1, values); err != nil {
				return err
			}
		}
	case []any:
		if len(v) > maxListItems {
			return fmt.Errorf("field %.100q has %d items: want at most %d", field, len(v), maxListItems)
		}
		for _, item := range v {
			if err := checkValues(item, field, depth+1, values); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkAnnotationSize refuses annotations that the API server would refuse, too.
func checkAnnotationSize(annotations map[string]string) error {
	size := 0
	for name, value := range annotations {
		size += len(name) + len(value)
	}
	if size > maxAnnotations {
		return fmt.Errorf("metadata.annotations: they have %d bytes: want at most %d", size, maxAnnotations)
	}
	return nil
}
