echo "one job"
echo "another job"
echo "another job" && echo "a combined job (bash syntax applies)"
bash ssh-batch/local.sh && echo "you can also call local files because they are copied by the remote by the default value of --copy-forward"
