"""Titles, widths and values copied from the output of Slurm 22.05.8 (Debian 12)."""


def _table(text: str) -> dict[str, str]:
    """Return the pairs of `name=value` words."""
    return dict(word.split("=", 1) for word in text.split())


SQUEUE_CODES = _table("""
a=ACCOUNT A=JOBID b=TRES_PER_NODE B=EXEC_HOST c=MIN_CPUS C=CPUS d=MIN_TMP_DISK D=NODES
e=END_TIME E=DEPENDENCY f=FEATURES F=ARRAY_JOB_ID g=GROUP G=GROUP h=OVER_SUBSCRIBE
H=SOCKETS_PER_NODE i=JOBID I=CORES_PER_SOCKET j=NAME J=THREADS_PER_CORE k=COMMENT
K=ARRAY_TASK_ID l=TIME_LIMIT L=TIME_LEFT m=MIN_MEMORY M=TIME n=REQ_NODES N=NODELIST o=COMMAND
O=CONTIGUOUS p=PRIORITY P=PARTITION q=QOS Q=PRIORITY r=REASON R=NODELIST(REASON) s= S=START_TIME
t=ST T=STATE u=USER U=UID v=RESERVATION V=SUBMIT_TIME w=WCKEY W=LICENSES x=EXC_NODES X=CORE_SPEC
y=NICE Y=SCHEDNODES z=S:C:T Z=WORK_DIR
""")
"""Titles of `squeue -o`."""
SQUEUE_NAMES = _table("""
account=ACCOUNT accruetime=ACCRUE_TIME allocnodes=ALLOC_NODES allocsid=ALLOC_SID
arrayjobid=ARRAY_JOB_ID arraytaskid=ARRAY_TASK_ID associd=ASSOC_ID batchflag=BATCH_FLAG
batchhost=EXEC_HOST boardspernode=BOARDS_PER_NODE burstbuffer=BURST_BUFFER
burstbufferstate=BURST_BUFFER_STATE cluster=CLUSTER clusterfeature=CLUSTER_FEATURES
command=COMMAND container=CONTAINER contiguous=CONTIGUOUS cores=CORES_PER_SOCKET
corespec=CORE_SPEC cpus-per-task=CPUS_PER_TASK cpus-per-tres=CPUS_PER_TRES
cpuspertask=CPUS_PER_TASK deadline=DEADLINE delayboot=DELAY_BOOT dependency=DEPENDENCY
derivedec=DERIVED_EC eligibletime=ELIGIBLE_TIME endtime=END_TIME exit_code=EXIT_CODE
feature=FEATURES gres=TRES_PER_NODE groupid=GROUP groupname=GROUP hetjobid=HET_JOB_ID
hetjobidset=HET_JOB_ID_SET hetjoboffset=HET_JOB_OFFSET jobarrayid=JOBID jobid=JOBID
lastschedeval=LAST_SCHED_EVAL licenses=LICENSES maxcpus=MAX_CPUS maxnodes=MAX_NODES
mcslabel=MCSLABEL mem-per-tres=MEM_PER_TRES mincpus=MIN_CPUS minmemory=MIN_MEMORY
mintime=TIME_MIN mintmpdisk=MIN_TMP_DISK name=NAME network=NETWORK nice=NICE nodelist=NODELIST
ntperboard=NTASKS_PER_BOARD ntpercore=NTASKS_PER_CORE ntpernode=NTASKS_PER_NODE
ntpersocket=NTASKS_PER_SOCKET numcpus=CPUS numnodes=NODES numtasks=TASKS origin=ORIGIN
originraw=ORIGIN_RAW oversubscribe=OVER_SUBSCRIBE packjobid=HET_JOB_ID
packjobidset=HET_JOB_ID_SET packjoboffset=HET_JOB_OFFSET partition=PARTITION
pendingtime=PENDING_TIME preempttime=PREEMPT_TIME prefer=PREFER priority=PRIORITY
prioritylong=PRIORITY profile=PROFILE qos=QOS reason=REASON reasonlist=NODELIST(REASON)
reboot=REBOOT reqnodes=REQ_NODES reqswitch=REQ_SWITCH requeue=REQUEUE reservation=RESERVATION
resizetime=RESIZE_TIME restartcnt=RESTART_COUNT schednodes=SCHEDNODES sct=S:C:T selectjobinfo=
shared=OVER_SUBSCRIBE siblingsactive=ACTIVE_SIBLINGS siblingsactiveraw=ACTIVE_SIBLINGS_RAW
siblingsviable=VIABLE_SIBLINGS siblingsviableraw=VIALBLE_SIBLINGS_RAW sockets=SOCKETS_PER_NODE
sperboard=SOCKETS_PER_BOARD starttime=START_TIME state=STATE statecompact=ST stderr=STDERR
stdin=STDIN stdout=STDOUT submittime=SUBMIT_TIME threads=THREADS_PER_CORE timeleft=TIME_LEFT
timelimit=TIME_LIMIT timeused=TIME tres-alloc=TRES_ALLOC tres-bind=TRES_BIND tres-freq=TRES_FREQ
tres-per-job=TRES_PER_JOB tres-per-node=TRES_PER_NODE tres-per-socket=TRES_PER_SOCKET
tres-per-task=TRES_PER_TASK userid=UID username=USER wckey=WCKEY workdir=WORK_DIR
""")
"""Titles of `squeue -O`."""
SINFO_CODES = _table("""
a=AVAIL A=NODES(A/I) b=ACTIVE_FEATURES B=MAX_CPUS_PER_NODE c=CPUS C=CPUS(A/I/O/T) d=TMP_DISK
D=NODES e=FREE_MEM E=REASON f=AVAIL_FEATURES F=NODES(A/I/O/T) g=GROUPS G=GRES h=OVERSUBSCRIBE
H=TIMESTAMP I=PRIO_JOB_FACTOR l=TIMELIMIT L=DEFAULTTIME m=MEMORY M=PREEMPT_MODE n=HOSTNAMES
N=NODELIST o=NODE_ADDR O=CPU_LOAD p=PRIO_TIER P=PARTITION r=ROOT R=PARTITION s=JOB_SIZE
S=ALLOCNODES t=STATE T=STATE u=USER U=USER v=VERSION V=CLUSTER w=WEIGHT X=SOCKETS Y=CORES
z=S:C:T Z=THREADS
""")
"""Titles of `sinfo -o`."""
SINFO_NAMES = _table("""
allocmem=ALLOCMEM allocnodes=ALLOCNODES available=AVAIL cluster=CLUSTER comment=COMMENT
cpus=CPUS cpusload=CPU_LOAD freemem=FREE_MEM cpusstate=CPUS(A/I/O/T) cores=CORES
defaulttime=DEFAULTTIME disk=TMP_DISK extra=EXTRA features=AVAIL_FEATURES
features_act=ACTIVE_FEATURES groups=GROUPS gres=GRES gresused=GRES_USED
maxcpuspernode=MAX_CPUS_PER_NODE memory=MEMORY nodeaddr=NODE_ADDR nodeai=NODES(A/I)
nodeaiot=NODES(A/I/O/T) nodehost=HOSTNAMES nodelist=NODELIST nodes=NODES partition=PARTITION
partitionname=PARTITION port=PORT preemptmode=PREEMPT_MODE priorityjobfactor=PRIO_JOB_FACTOR
prioritytier=PRIO_TIER reason=REASON root=ROOT oversubscribe=OVERSUBSCRIBE share=OVERSUBSCRIBE
size=JOB_SIZE statecompact=STATE statecomplete=STATECOMPLETE statelong=STATE sockets=SOCKETS
socketcorethread=S:C:T time=TIMELIMIT timestamp=TIMESTAMP threads=THREADS user=USER
userlong=USER version=VERSION weight=WEIGHT
""")
"""Titles of `sinfo -O`."""
SACCT_WIDTHS = _table("""
Account=10 AdminComment=15 AllocCPUS=10 AllocNodes=10 AllocTRES=10 AssocID=7 AveCPU=10
AveCPUFreq=10 AveDiskRead=14 AveDiskWrite=14 AvePages=10 AveRSS=10 AveVMSize=10 BlockID=16
Cluster=10 Comment=14 Constraints=19 ConsumedEnergy=14 ConsumedEnergyRaw=17 Container=19
CPUTime=10 CPUTimeRAW=10 DBIndex=-10 DerivedExitCode=15 Elapsed=10 ElapsedRaw=10 Eligible=19
End=19 ExitCode=8 Flags=19 GID=6 Group=9 JobID=-12 JobIDRaw=-12 JobName=10 Layout=9
MaxDiskRead=12 MaxDiskReadNode=15 MaxDiskReadTask=15 MaxDiskWrite=12 MaxDiskWriteNode=16
MaxDiskWriteTask=16 MaxPages=8 MaxPagesNode=12 MaxPagesTask=14 MaxRSS=10 MaxRSSNode=10
MaxRSSTask=10 MaxVMSize=10 MaxVMSizeNode=14 MaxVMSizeTask=14 McsLabel=12 MinCPU=10 MinCPUNode=10
MinCPUTask=10 NCPUS=10 NNodes=8 NodeList=15 NTasks=8 Partition=10 Priority=10 QOS=10 QOSRAW=6
Reason=22 ReqCPUFreq=10 ReqCPUFreqGov=13 ReqCPUFreqMax=13 ReqCPUFreqMin=13 ReqCPUS=8 ReqMem=10
ReqNodes=8 ReqTRES=10 Reservation=20 ReservationId=8 Reserved=10 ResvCPU=10 ResvCPURAW=10
Start=19 State=10 Submit=19 SubmitLine=20 Suspended=10 SystemComment=15 SystemCPU=10
Timelimit=10 TimelimitRaw=10 TotalCPU=10 TRESUsageInAve=14 TRESUsageInMax=14
TRESUsageInMaxNode=18 TRESUsageInMaxTask=18 TRESUsageInMin=14 TRESUsageInMinNode=18
TRESUsageInMinTask=18 TRESUsageInTot=14 TRESUsageOutAve=15 TRESUsageOutMax=15
TRESUsageOutMaxNode=19 TRESUsageOutMaxTask=19 TRESUsageOutMin=15 TRESUsageOutMinNode=19
TRESUsageOutMinTask=19 TRESUsageOutTot=15 UID=6 User=9 UserCPU=10 WCKey=10 WCKeyID=10 WorkDir=20
""")
"""Widths of the columns of sacct; negative ones are aligned left."""
