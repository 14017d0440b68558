{{- /* Mistakes that no schema sees: each message says what is wrong, where, and what to write. */ -}}

{{- define "epp.validate" -}}
{{- $router := .Values.router -}}
{{- $epp := $router.epp -}}
{{- if not $router.modelServers.matchLabels -}}
{{- fail "router.modelServers.matchLabels is empty, which would pick from every pod of the namespace: write the labels of the model servers' pods, such as --set router.modelServers.matchLabels.app=vllm" -}}
{{- end -}}
{{- if gt (len .Release.Name) 40 -}}
{{- fail (printf "the release's name %q is the name of the pool and part of others: choose one of 40 characters or less" .Release.Name) -}}
{{- end -}}
{{- if and $router.inferenceObjectives (not $router.inferencePool.create) -}}
{{- fail "router.inferenceObjectives needs the pool that they belong to: leave them out, or set router.inferencePool.create to true" -}}
{{- end -}}
{{- if and .Values.httpRoute.create (not $router.inferencePool.create) -}}
{{- fail "httpRoute.create needs the pool that it leads to: set router.inferencePool.create to true" -}}
{{- end -}}
{{- range tuple "pool-name" "pool-namespace" "pool-group" "endpoint-selector" "endpoint-target-ports" "config-file" "config-text" "endpoints" "pool-selector" "pool-config-dir" "grpc-port" "grpc-health-port" "metrics-port" "shared-state" "shared-quotas-when-alone" -}}
{{- if hasKey $epp.flags . -}}
{{- fail (printf "router.epp.flags has %s, which this chart sets from other values: remove it" .) -}}
{{- end -}}
{{- end -}}
{{- if regexMatch "^[a-z+]+://[^/@]*:[^/@]*@" $router.sharedState.url -}}
{{- fail "router.sharedState.url has a password, which everyone who may read pods would see: put it into a Secret, and name that in router.sharedState.passwordSecret" -}}
{{- end -}}
{{- if and (not $router.sharedState.url) (ne $router.sharedState.quotasWhenAlone "last-known-share") -}}
{{- fail "router.sharedState.quotasWhenAlone is for pickers that share the use of quotas: set router.sharedState.url, or leave it out" -}}
{{- end -}}
{{- if and $router.tokenizer.enabled (not (or $router.tokenizer.modelName $router.tokenizer.args)) -}}
{{- fail "router.tokenizer.modelName is empty: write the name of the model whose prompts are tokenized" -}}
{{- end -}}
{{- if and $router.tokenizer.enabled (has (int $router.tokenizer.port) (list 9002 9090 (int $epp.grpcHealthPort) (int $router.proxy.port) (int $router.proxy.statusPort))) -}}
{{- fail (printf "router.tokenizer.port %d is a port of the picker's pod already: choose another" (int $router.tokenizer.port)) -}}
{{- end -}}
{{- if and $epp.autoscaling.enabled (include "epp.leaderElection" .) -}}
{{- fail "router.epp.autoscaling cannot help a picker with leader election, where one replica does all the work: remove ha-enable-leader-election from router.epp.flags" -}}
{{- end -}}
{{- if and $epp.autoscaling.enabled (lt (int $epp.autoscaling.maxReplicas) (int $epp.autoscaling.minReplicas)) -}}
{{- fail (printf "router.epp.autoscaling.maxReplicas %d is less than minReplicas %d" (int $epp.autoscaling.maxReplicas) (int $epp.autoscaling.minReplicas)) -}}
{{- end -}}
{{- $files := keys $epp.pluginsCustomConfig -}}
{{- if and $epp.pluginsConfig (has $epp.pluginsConfigFile $files) -}}
{{- fail (printf "%s is in router.epp.pluginsConfig and in router.epp.pluginsCustomConfig: remove one" $epp.pluginsConfigFile) -}}
{{- end -}}
{{- if not (or $epp.pluginsConfig (has $epp.pluginsConfigFile (concat $files (list "default-plugins.yaml" "llm-d-default.yaml" "payload-agnostic.yaml")))) -}}
{{- fail (printf "router.epp.pluginsConfigFile is %s, which no value has: add it to router.epp.pluginsCustomConfig, or write its content to router.epp.pluginsConfig" $epp.pluginsConfigFile) -}}
{{- end -}}
{{- $grace := int $epp.terminationGracePeriodSeconds -}}
{{- with index $epp.flags "drain-timeout" -}}
{{- if and (regexMatch "^[0-9]+s$" (toString .)) (gt (add (trimSuffix "s" (toString .) | int) 10) (int64 $grace)) -}}
{{- fail (printf "router.epp.terminationGracePeriodSeconds %d ends the picker within its drain-timeout of %s: write %d or more" $grace (toString .) (add (trimSuffix "s" (toString .) | int) 10)) -}}
{{- end -}}
{{- end -}}
{{- if and $router.proxy.failOpen (eq $router.proxy.bodyMode "full-duplex") -}}
{{- fail "router.proxy.failOpen loses full-duplex bodies with the picker: leave router.proxy.bodyMode out, or set it to buffered" -}}
{{- end -}}
{{- if and (include "epp.proxy.sidecar" .) (gt (add (int $router.proxy.drainSeconds) 10) (int64 $grace)) -}}
{{- fail (printf "router.epp.terminationGracePeriodSeconds %d ends the pod within router.proxy.drainSeconds %d: write %d or more" $grace (int $router.proxy.drainSeconds) (add (int $router.proxy.drainSeconds) 10)) -}}
{{- end -}}
{{- end -}}
